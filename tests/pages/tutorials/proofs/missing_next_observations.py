# ruff: noqa: F821
# Runs at the end of tutorials/memory/missing_next_observations.py, with its names.

if __name__ == "__main__":
    assert torch.equal(compact["observation"], full["observation"])
    following = full["observation"].roll(-1, dims=0)
    assert torch.equal((following != full[NEXT_OBS]).any(-1), trajectory_end)
    assert terminated.any()
    assert (done & ~terminated).any()
    assert nan_rows["GAE"][1] == nan_rows["TD(lambda)"][1] == N_FRAMES
    assert nan_rows["TD(0)"][1] == int(trajectory_end.sum())
    assert nan_rows["GAE"][2] == 0
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

    # TD(lambda) sums over rows and needs those that `usable` drops; TD(0) does not.
    batch = audits["slices", "step_count"][0][:BATCH_FRAMES]
    whole = batch.clone().set(NEXT_OBS, full[NEXT_OBS][batch["index"].flatten()])
    kept = ~batch[NEXT_OBS].isnan().any(-1) | batch["next", "terminated"].squeeze(-1)
    off = {}
    for name in ("TD(0)", "TD(lambda)"):
        wanted = estimators[name].value_estimate(whole.clone())
        found = estimators[name].value_estimate(usable(batch.clone()))
        off[name] = (wanted[kept] - found).abs().max() / wanted.std()
    assert off["TD(0)"] < 1e-3
    assert off["TD(lambda)"] > 1
