"""Packages and parts that are not there."""

from labkit.base.extras import MissingPackage, explain_missing, need


def test_a_part_that_is_left_out_is_said_to_be_and_another_error_is_as_it_was():
    left_out = explain_missing(ModuleNotFoundError(name="labkit_classroom"))
    assert (type(left_out), str(left_out)) == (
        MissingPackage,
        "this installation of labkit lacks labkit_classroom",
    )
    assert explain_missing(left_out) is left_out
    for name in (None, "labkit", "simgpu.none", "elsewhere"):
        error = ModuleNotFoundError(name=name)
        assert explain_missing(error) is error
    need("sys", "json")
