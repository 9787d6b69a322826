"""Where labkit's engine differs from torch.nn.parallel on purpose: the published list.

``python -m tools.differences`` prints it; ``docs/differences.md`` is that print. Each entry names the test that holds it.
In everything else the two agree, bit for bit: ``tests/engine/test_random_models.py`` compares them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """One difference: what PyTorch does, what labkit does, the issues that tell of it, and its test."""

    subject: str
    pytorch: str
    labkit: str
    test: str
    issues: tuple[int, ...] = ()


_HERE, _BUGS = "tests/engine/test_differences.py", "tests/test_known_bugs.py"

DIFFERENCES = (
    Difference(
        "inputs with different numbers of rows", "runs as many replicas as the shortest has pieces; the other rows are dropped without a word",
        "an error that names the inputs and their rows", f"{_HERE}::test_rows_are_never_dropped_silently", (7358,),
    ),
    Difference(
        "a tensor keyword with fewer rows", "`The number of modules 4 is not equal to the number of kwargs_tup 2`",
        "an error that names the keyword", f"{_HERE}::test_a_short_keyword_is_named", (33185,),
    ),
    Difference(
        "fewer pieces than GPUs, and a keyword", "a replica too many, which gets the keyword and no input",
        "as many replicas as pieces", f"{_HERE}::test_a_batch_of_one_keeps_its_keyword", (15161, 31460, 52260),
    ),
    Difference(
        "the type of autocast", "float16 in the replicas, whatever was asked for",
        "the type that was asked for", f"{_HERE}::test_the_autocast_dtype_reaches_the_replicas",
    ),
    Difference(
        "numbers and texts as outputs", "`'float' object is not iterable`; a text comes back as a map object",
        "an error that names the output and what to return", f"{_HERE}::test_outputs_that_cannot_be_gathered_are_explained", (94699,),
    ),
    Difference(
        "dataclasses as outputs", "an argument of the class is missing",
        "gathered field by field", f"{_HERE}::test_dataclass_outputs_are_gathered", (41327,),
    ),
    Difference(
        "dicts with different keys", "the number of keys is said to differ",
        "the keys and the replica are named", f"{_HERE}::test_dicts_that_differ_name_the_key",
    ),
    Difference(
        "outputs whose shapes do not fit", "RuntimeError or IndexError from the gathering",
        "ValueError that names the output, the replica and both shapes", f"{_HERE}::test_shapes_that_do_not_fit_name_the_replica", (5664,),
    ),
    Difference(
        "several replicas fail", "the first one is told of",
        "all are named, with device and input shapes, and often a hint", f"{_HERE}::test_a_failure_tells_replica_device_shapes_and_the_original_traceback",
    ),
    Difference(
        "a parameter on another device", "an error without its name",
        "the same error with its name", f"{_HERE}::test_the_misplaced_parameter_is_named", (17362,),
    ),
    Difference(
        "a buffer on another device", "an error without its name",
        "the same error with its name", f"{_HERE}::test_the_misplaced_buffer_is_named",
    ),
    Difference(
        "`device_ids` with a GPU twice or one that does not exist", "an error later, from elsewhere",
        "an error when wrapping", f"{_HERE}::test_bad_device_ids_are_refused",
    ),
    Difference(
        "buffers written under `inference_mode`", "an error in the replicas",
        "they are written", f"{_HERE}::test_buffers_are_written_in_inference_mode",
    ),
    Difference(
        "a sparse gradient and one replica", "an error from `aten::view`",
        "it works", f"{_HERE}::test_a_sparse_gradient_of_one_replica",
    ),
    Difference(
        "complex numbers along the last dimension", "cut as pairs of real ones",
        "cut as numbers", f"{_HERE}::test_complex_numbers_are_not_cut_in_two",
    ),
    Difference(
        "the strides of weights, `channels_last` among them", "lost: replicas' weights are contiguous",
        "kept", f"{_HERE}::test_weights_keep_their_strides",
    ),
    Difference(
        "attributes written in forward", "lost without a word",
        "lost, with a warning that names them (once for each wrapped module)", f"{_BUGS}::TestIssue5958::test_labkit", (2864, 5958, 11476),
    ),
    Difference(
        "`parameters()` of a replica", "empty, or StopIteration from `next()`",
        "the same, with a warning or a hint where to find the weights", f"{_BUGS}::TestIssue40457::test_labkit", (36035, 38493, 40457),
    ),
    Difference(
        "modules and tensors in plain lists and attributes", "stay on the first GPU; the devices do not agree",
        "the same error, with a hint that names the attribute and its fix", f"{_BUGS}::TestIssue3174::test_labkit", (3174,),
    ),
    Difference(
        "a list as long as the batch", "given whole to every GPU; a list of tensors is cut inside each",
        "the same, with a warning, or a hint in the error", f"{_BUGS}::TestIssue75442::test_labkit", (2312, 55304, 75442),
    ),
    Difference(
        "a list as long as the batch inside another, or along another `dim`", "given whole to every GPU",
        "the same, with a warning", f"{_HERE}::test_a_list_as_long_as_the_batch_is_told_of",
    ),
    Difference(
        "checkpoints with and without `module.`", "missing and unexpected keys",
        "`load_state_dict` takes both", f"{_BUGS}::TestIssue3805::test_labkit", (3805,),
    ),
    Difference(
        "the wrapped module's own methods and attributes", "AttributeError",
        "AttributeError that says what to write", f"{_BUGS}::TestIssue16885::test_labkit", (16885, 43329),
    ),
)  # fmt: skip


def table() -> str:
    """The list as Markdown."""
    rows = [
        f"| {one.subject} | {one.pytorch} | {one.labkit} | {', '.join(map(str, one.issues))} | `{one.test.rpartition('::')[2] if 'Issue' not in one.test else one.test.partition('::')[2]}` |"
        for one in DIFFERENCES
    ]
    return (
        "# Where labkit.DataParallel differs from torch.nn.DataParallel\n\n"
        "Made by `python -m tools.differences`. Numbers are issues of pytorch/pytorch; the tests stand in "
        f"`{_HERE}` and `{_BUGS}`. In all else the two agree bit for bit, as `tests/engine/test_random_models.py` checks.\n\n"
        "| what | PyTorch | labkit | issues | test |\n| --- | --- | --- | --- | --- |\n"
        + "\n".join(rows)
        + "\n"
    )


if __name__ == "__main__":
    print(table(), end="")
