"""The CUDA runtime's own functions, as ``torch.cuda.cudart()`` gives them."""

import pytest
import torch

import labkit

# The codes that scripts meet (cudaError_t), in the words of the CUDA runtime.
ERRORS = {
    0: "no error",
    2: "out of memory",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    209: "no kernel image is available for execution on the device",
    400: "invalid resource handle",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    710: "device-side assert triggered",
    12345: "unrecognized error code",
}


@pytest.mark.parametrize("code", ERRORS)
def test_an_error_has_its_words(code):
    with labkit.simulate(1):
        assert torch.cuda.cudart().cudaGetErrorString(code) == ERRORS[code]
