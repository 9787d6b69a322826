"""The result of a check-up: findings, and the :class:`Diagnosis` that holds them and shows itself."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from html import escape

from labkit.base.language import say
from labkit.base.texts import text_function
from labkit.base.units import localized_bytes
from labkit.plans.split import Split
from simgpu.fidelity import PEAK_STEP

_told = text_function(__file__)
SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One thing that a check-up found.

    name       the kind of fault, the same in every language: ``"batch_moved"``.
    severity   "error": it fails or computes something else; "warning": it works, and hardly as intended;
               "note": good to know.
    where      the input, output, module, attribute or line that has the fault.
    reason     what happens, and why.
    fix        what to do.
    lesson     the lesson that explains it, "" if none does.
    section    the heading in that lesson, in the language in use.
    """

    name: str
    severity: str
    where: str
    reason: str
    fix: str
    lesson: str
    section: str = ""


@dataclass(frozen=True)
class GpuMemory:
    """Bytes on one GPU during a training step: the weights it keeps, and the most that lived at one time."""

    device: str
    weights: int
    peak: int


@dataclass(frozen=True)
class Diagnosis:
    """The result of :func:`labkit.diagnose`; a bare last expression in a cell shows it.

    findings     the worst come first.
    split        which GPU gets which rows of the batch.
    memory       the memory of each GPU during a training step; empty if no step could be run.
    compared     lines of text: what was compared between 1 and n GPUs and how, with the largest difference.
    uncompared   lines of text: what could not be compared, and why.
    """

    model: str
    split: Split
    findings: tuple[Finding, ...]
    memory: tuple[GpuMemory, ...] = ()
    compared: tuple[str, ...] = ()
    uncompared: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """How many GPUs the model was checked for."""
        return self.split.gpus

    @property
    def ok(self) -> bool:
        """Whether there is neither an error nor a warning, and everything could be compared."""
        return not self.uncompared and all(finding.severity == "note" for finding in self.findings)

    def count(self, severity: str) -> int:
        """How many findings are of this severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def __contains__(self, name: str) -> bool:
        """``"batch_moved" in diagnosis``."""
        return any(finding.name == name for finding in self.findings)

    def to_json(self) -> str:
        """Everything as a JSON object, for tools."""
        return json.dumps(self._facts(), indent=1, ensure_ascii=False)

    def _facts(self) -> dict[str, object]:
        return {
            "model": self.model,
            "gpus": self.gpus,
            "batch": self.split.batch,
            "rows_by_gpu": list(self.split.rows_by_gpu),
            "ok": self.ok,
            "findings": [asdict(finding) for finding in self.findings],
            "memory": [asdict(one) for one in self.memory],
            "compared": list(self.compared),
            "uncompared": list(self.uncompared),
        }

    def summary(self) -> str:
        """The verdict in one line."""
        errors, warnings = self.count("error"), self.count("warning")
        if self.ok:
            verdict = say(en="nothing wrong was found", zh="没有发现问题")
        elif errors + warnings:
            verdict = _told("counted", errors=errors, warnings=warnings)
        else:
            verdict = say(en="could not be compared", zh="无法比较")
        return self._subject() + verdict

    def _subject(self) -> str:
        """How the summary begins: what was checked."""
        colon = say(en=": ", zh="：")
        return _told("subject", model=self.model, batch=self.split.batch, gpus=self.gpus) + colon

    def _comparisons(self) -> list[tuple[str, tuple[str, ...]]]:
        """The lines of what was compared and of what could not be, each under its title."""
        found = {"compared": self.compared, "uncompared": self.uncompared}
        return [(_told(title), lines) for title, lines in found.items() if lines]

    def __repr__(self) -> str:
        lines = [self.summary()]
        for finding in self.findings:
            lines += [
                "",
                f"{label(finding.severity).upper()}  {finding.name}  {finding.where}".rstrip(),
                f"  {finding.reason}",
                f"  {say(en='Do', zh='怎么办')}{say(en=': ', zh='：')}{finding.fix}",
                *([f"  {lesson_line(finding.lesson, finding.section)}"] if finding.lesson else []),
            ]
        for title, facts in self._comparisons():
            lines += ["", title, *(f"  {line}" for line in facts)]
        if self.memory:
            lines += ["", _told("step")]
            for one in self.memory:
                peak, weights = _peak(one.peak), localized_bytes(one.weights)
                lines.append("  " + _told("memory", device=one.device, peak=peak, weights=weights))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        # Colours on the edge only: text keeps the notebook's own, in its light and its dark theme.
        parts = [f'<div class="labkit-diagnosis"><p><strong>{escape(self.summary())}</strong></p>']
        for finding in self.findings:
            colour = {"error": "#d1242f", "warning": "#bf8700", "note": "#0969da"}[finding.severity]
            parts.append(
                f'<div style="border-left:4px solid {colour};padding:2px 12px;margin:10px 0" '
                f'data-finding="{escape(finding.name)}">'
                f"<strong>{escape(label(finding.severity))}</strong> · <code>{escape(finding.name)}</code> "
                f"{escape(finding.where)}<br>{_code(finding.reason)}<br>"
                f"<strong>{say(en='Do: ', zh='怎么办：')}</strong>{_code(finding.fix)}"
                + (f"<br>{_code(lesson_line(finding.lesson, finding.section))}" if finding.lesson else "")
                + "</div>"
            )
        for title, facts in self._comparisons():
            parts.append("<p>" + "<br>".join([escape(title), *map(_code, facts)]) + "</p>")
        if self.memory:
            parts.append(
                f"<table><thead><tr><th>GPU</th><th>{say(en='weights kept', zh='常驻权重')}</th>"
                f"<th>{say(en='most during a step', zh='一步之中的峰值')}</th></tr></thead><tbody>"
            )
            parts += [
                f"<tr><td>{one.device}</td><td>{localized_bytes(one.weights)}</td><td>{_peak(one.peak)}</td></tr>"
                for one in self.memory
            ]
            parts.append("</tbody></table>")
        return "".join(parts) + "</div>"


def label(severity: str) -> str:
    """The severity in the language in use."""
    return _told(severity)


def _peak(count: int) -> str:
    # The machine counts peaks in steps: below the first one, it does not know.
    return localized_bytes(count) if count >= PEAK_STEP else say(en="under 16 KiB", zh="不到 16 KiB")


def _code(text: str) -> str:
    """``text`` for HTML, what stands between backticks as code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if at % 2 else piece for at, piece in enumerate(pieces))


def lesson_line(lesson: str, section: str) -> str:
    """The line that says where to read more: ``See lesson 06_batch_dim: Let it be found``."""
    return _told("lesson", lesson=lesson, number=lesson[:2], section=section)
