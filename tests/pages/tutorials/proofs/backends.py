# ruff: noqa: F821
# Runs at the end of tutorials/recurrent/backends.py, with its names.

# One piece for each row and one more for each reset; as many next states, and as many stored states
# with a gradient.
assert begins.sum() == finishes.sum() == ROWS + len(RESETS)
for kind in KINDS:
    assert torch.equal(touched(expected[kind]["next states"]), finishes)
    assert torch.equal(touched(expected[kind]["stored states"]), begins)
assert (slices["h"].flatten(2).ne(0).any(-1)).all()
assert not slices["is_init"][:, 0].any()

assert not after_whole["h"][:, CUT - 1].any()
