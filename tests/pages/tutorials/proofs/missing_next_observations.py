# ruff: noqa: F821
# Runs at the end of tutorials/memory/missing_next_observations.py, with its names.

if __name__ == "__main__":
    for name in ("slices", "random"):
        _, by_default, wrong = audits[name, None]
        assert torch.equal(audits[name, "step_count"][1], by_default | wrong)
    _, nan, bad = audits["random", None]
    assert nan.sum() > len(nan) / 2
    assert bad.sum() > (~nan & ~bad).sum() > 0

    complete = sample[~missing]
    assert len(good) > len(complete)
    assert dqn_loss(complete.clone())["loss"].isfinite()
    assert sac_loss(complete.clone())["loss_qvalue"].isfinite()
    zeros = dqn_loss(good.clone())["loss"]
    ended = good["next", "terminated"]
    ones = good[NEXT_OBS].masked_fill(ended, 1.0)
    assert dqn_loss(good.clone().set(NEXT_OBS, ones))["loss"] == zeros
