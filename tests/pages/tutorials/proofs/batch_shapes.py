# ruff: noqa: F821
# Runs at the end of tutorials/collectors/batch_shapes.py, with its names.

if __name__ == "__main__":
    # The ground truth knows what ends a trajectory: both kinds of end occur, and a cut.
    single = batches[Collector, "", 1]
    terminated, truncated = single["next", "terminated"], single["next", "truncated"]
    assert terminated.any()
    assert (truncated & ~terminated).any()
    assert not single["next", "done"][-1]
    assert not wrong(single, advantage_of(single)).any()

    for case, each in batches.items():
        assert each.numel() == FRAMES, case
        assert advantage_of(each).isfinite().all(), case
        if case in LEAKY:
            assert rows_before_seams(each, each.shape[-1] // N_WORKERS).any(), case

    # The error shrinks backward by gamma * lambda per row, and is not small.
    assert int(bad[-1]) == seam - 1
    errors = (advantage - truth)[bad].abs()
    decay = torch.full_like(errors[1:], GAMMA * LAMBDA)
    torch.testing.assert_close(errors[:-1] / errors[1:], decay, rtol=1e-2, atol=0)
    assert errors.argmax() == len(errors) - 1
    assert errors[-1] > truth.std()

    # What a reshape does: to the names, and to which rows.
    assert flat.names == [None]
    assert torch.stack(batch.unbind(-1)).names == [None, None]
    assert time_major.shape == (FRAMES // N_ENVS, N_ENVS)
    flat_wrong = wrong(flat, advantage_of(flat))
    assert torch.equal(flat_wrong, rows_before_seams(flat, FRAMES // N_ENVS))
    assert n_wrong["flat"] < FRAMES / 2 < n_wrong["time first"]
    assert transposed.names == ["time", None]

    # Advantages first and flat afterwards: no wrong row.
    after = make_gae()(batch.clone()).reshape(-1)
    assert not wrong(flat, after["advantage"].squeeze(-1)).any()

    # A split of an unmarked batch spoils the trajectories that are open, all of their rows, and no
    # others: the one at the seam, and the one at the end, which was right.
    split = split_trajectories(glued)
    mask = split["collector", "mask"]
    spoiled = split[mask][wrong(split[mask], advantage_of(split)[mask])]
    is_open = ~glued["next", "done"].squeeze(-1)[[seam - 1, -1]]
    assert is_open.all()
    open_at = glued[TRAJ_KEY][[seam - 1, -1]]
    assert len(spoiled) == torch.isin(glued[TRAJ_KEY], open_at).sum()
    assert torch.isin(spoiled[TRAJ_KEY], open_at).all()
    assert not (glued[TRAJ_KEY][bad] == open_at[1]).any()

    assert marked.shape == (FRAMES,)
    assert marked[TRAJ_KEY][seam - 1] != marked[TRAJ_KEY][seam]
