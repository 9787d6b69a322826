"""The result of a check-up: a :class:`Diagnosis` with its findings, as text, HTML and JSON."""

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
    """A fault or a remark.

    name       the kind of fault, the same in every language: ``"batch_moved"``.
    severity   "error": the model fails or gives other results; "warning": it runs, but hardly as intended;
               "note": good to know.
    where      the input, output, module, attribute or line with the fault.
    reason     the effect and its cause.
    fix        the remedy.
    lesson     the lesson that explains the fault, or "".
    section    the heading in that lesson, in the current language.
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
    """Bytes on one GPU during a training step: its weights, and the peak of all tensors."""

    device: str
    weights: int
    peak: int


@dataclass(frozen=True)
class Diagnosis:
    """The result of :func:`labkit.diagnose`; notebooks show it as HTML.

    findings     the findings, errors first.
    split        the rows of each GPU.
    memory       the memory of each GPU during a training step; empty if the step failed.
    compared     sentences about values compared between 1 and n GPUs, with the largest difference.
    uncompared   sentences about values that could not be compared, with the reason.
    """

    model: str
    split: Split
    findings: tuple[Finding, ...]
    memory: tuple[GpuMemory, ...] = ()
    compared: tuple[str, ...] = ()
    uncompared: tuple[str, ...] = ()

    @property
    def gpus(self) -> int:
        """The number of GPUs that the model was checked for."""
        return self.split.gpus

    @property
    def ok(self) -> bool:
        """Whether there are no errors and no warnings, and everything could be compared."""
        return not self.uncompared and all(finding.severity == "note" for finding in self.findings)

    def count(self, severity: str) -> int:
        """Return the number of findings of this severity."""
        return sum(finding.severity == severity for finding in self.findings)

    def __contains__(self, name: str) -> bool:
        """Return whether there is a finding of this name: ``"batch_moved" in diagnosis``."""
        return any(finding.name == name for finding in self.findings)

    def to_json(self) -> str:
        """Return all facts as a JSON object, for tools."""
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
        """Return the verdict in one line."""
        errors, warnings = self.count("error"), self.count("warning")
        if self.ok:
            verdict = say(en="nothing wrong was found", zh="没有发现问题")
        elif errors + warnings:
            verdict = _told("counted", errors=errors, warnings=warnings)
        else:
            verdict = say(en="could not be compared", zh="无法比较")
        return self._subject() + verdict

    def _subject(self) -> str:
        """Return the beginning of the summary: model, batch and GPUs."""
        colon = say(en=": ", zh="：")
        return _told("subject", model=self.model, batch=self.split.batch, gpus=self.gpus) + colon

    def _comparisons(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return (title, sentences) for the compared and for the uncompared values."""
        found = {"compared": self.compared, "uncompared": self.uncompared}
        return [(_told(title), lines) for title, lines in found.items() if lines]

    def __repr__(self) -> str:
        lines = [self.summary()]
        for finding in self.findings:
            lines += ["", *finding_lines(finding)]
        for title, facts in self._comparisons():
            lines += ["", title, *(f"  {line}" for line in facts)]
        if self.memory:
            lines += ["", _told("step")]
            for one in self.memory:
                peak, weights = _peak(one.peak), localized_bytes(one.weights)
                lines.append("  " + _told("memory", device=one.device, peak=peak, weights=weights))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        # Colour only the edge: text keeps the colour of the notebook's theme, light or dark.
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
                f"<table><thead><tr><th>GPU</th><th>{say(en='weights', zh='常驻权重')}</th>"
                f"<th>{say(en='peak during a step', zh='一步之中的峰值')}</th></tr></thead><tbody>"
            )
            parts += [
                f"<tr><td>{one.device}</td><td>{localized_bytes(one.weights)}</td><td>{_peak(one.peak)}</td></tr>"
                for one in self.memory
            ]
            parts.append("</tbody></table>")
        return "".join(parts) + "</div>"


def finding_lines(finding: Finding) -> list[str]:
    """Return a finding as lines of text."""
    return [
        f"{label(finding.severity).upper()}  {finding.name}  {finding.where}".rstrip(),
        f"  {finding.reason}",
        f"  {say(en='Do', zh='怎么办')}{say(en=': ', zh='：')}{finding.fix}",
        *([f"  {lesson_line(finding.lesson, finding.section)}"] if finding.lesson else []),
    ]


def label(severity: str) -> str:
    """Return the severity in the current language."""
    return _told(severity)


def _peak(count: int) -> str:
    # The machine measures peaks in steps of PEAK_STEP bytes.
    return localized_bytes(count) if count >= PEAK_STEP else say(en="under 16 KiB", zh="不到 16 KiB")


def _code(text: str) -> str:
    """Return ``text`` as HTML, with text between backticks as code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if at % 2 else piece for at, piece in enumerate(pieces))


def lesson_line(lesson: str, section: str) -> str:
    """Return the reference to a lesson: ``See lesson 06_batch_dim: Let it be found``."""
    return _told("lesson", lesson=lesson, number=lesson[:2], section=section)
