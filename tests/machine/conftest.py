"""PyTorch's own table of operators."""

import pytest


@pytest.fixture(scope="module")
def operators():
    """The entries of op_db, which give samples of each operator's arguments."""
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core

    with pytest.MonkeyPatch.context() as patch:
        for room in (common_utils, core):
            # For each sample it looks through all frames for a unittest that there is none of here: 0.15 s a time.
            patch.setattr(room, "extract_test_fn", lambda: None)
        yield op_db
