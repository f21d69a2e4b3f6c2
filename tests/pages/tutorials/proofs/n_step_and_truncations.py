# ruff: noqa: F821
# Runs at the end of tutorials/memory/n_step_and_truncations.py, with its names.

if __name__ == "__main__":
    import inspect

    n_ahead = n_step["steps_to_next_obs"].squeeze(-1)
    assert torch.equal(n_ahead, lookup - rows[: len(n_step)] + 1)
    assert torch.equal(rebuilt[NEXT_OBS].isnan().any(-1), trajectory_end)
    # The delta of a later step is added to the observation of this one.
    later = full[NEXT_OBS] - full["observation"]
    place = sample["index"].flatten()  # the last pipeline is the delta
    added = full["observation"][place] + later[lookup[place]]
    torch.testing.assert_close(sample[NEXT_OBS], added, rtol=0, atol=DELTA_TOLERANCE)
    assert terminated.any()
    assert truncated.any()
    assert inspect.signature(GAE).parameters["shifted_budget"].default == 1
    assert n_valid["both", 1] < n_valid["both", full_budget - 1] < N_FRAMES
    _, valid, off = shifted_pass(full, 1)
    assert (full[TRAJ_KEY][off] == full[TRAJ_KEY][valid][-1]).all()
    advantage, *_ = shifted_pass(compact, full_budget)
    biased = gae(critic)(rebuilt.clone())["advantage"]
    torch.testing.assert_close(advantage, biased, rtol=1e-3, atol=1e-4)
