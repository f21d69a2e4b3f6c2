# ruff: noqa: F821
# Runs at the end of tutorials/memory/memory_efficient_rl.py, with its names.

if __name__ == "__main__":
    fresh = ClipPPOLoss(*make_networks())
    for old, new in zip(fresh.parameters(), trained.parameters(), strict=True):
        assert not torch.equal(old, new)
    assert compact_batch["advantage"].isfinite().all()
    assert delta_batch["advantage"].isfinite().all()
    assert torch.equal(compact_batch["index"], delta_batch["index"])
    assert 0 < compact_batch[NEXT_OBS].isnan().any(-1).sum() <= BATCH_FRAMES // SLICE_FRAMES
    assert not delta_batch[NEXT_OBS].isnan().any()
    slice_end = compact_batch["next", "done"].squeeze(-1)
    assert int(slice_end.sum()) == BATCH_FRAMES // SLICE_FRAMES
    assert difference[slice_end].max() > DELTA_TOLERANCE
