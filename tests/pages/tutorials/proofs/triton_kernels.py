# ruff: noqa: F821
# Runs at the end of tutorials/recurrent/triton_kernels.py, with its names.

assert HIDDEN & (HIDDEN - 1)  # no power of two
if has_triton:
    for case in cases:  # states are read and written at the same slots, others stay zero
        for name in ("next states", "stored states"):
            for found, other in zip(interpreted[case][name], expected[case[0]][name], strict=True):
                assert torch.equal(found != 0, other != 0), (case, name)
