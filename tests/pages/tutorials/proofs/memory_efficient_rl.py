# ruff: noqa: F821
# Runs at the end of tutorials/memory/memory_efficient_rl.py, with its names.

if __name__ == "__main__":
    # The version to copy keeps the terminated rows, of which each has NaN when it is rebuilt.
    assert sample["next", "terminated"].sum() == terminated.sum()
    assert sample["next", "observation"].isfinite().all()

    # A frame of CartPole: floats of 4 bytes, integers of 8 (the action is one-hot), flags of 1.
    frame = {"observation": 16, NEXT_OBS: 16, "action": 16, TRAJ_KEY: 8, ("next", "reward"): 4}
    for flag in ("done", "terminated", "truncated"):
        frame[flag] = frame["next", flag] = 1
    assert {key: plain[0][key].nbytes for key in plain.keys(True, True)} == frame
    assert torch.equal(rebuilt[NEXT_OBS].isnan().any(-1), trajectory_end)

    assert torch.equal(nan_with_count, nan_by_default | wrong)  # a wrong row is NaN now
    counts = touching["step_count"].flatten()
    not_next = counts[1:] != counts[:-1] + 1
    assert torch.equal(wrong[:-1], not_next & ~nan_by_default[:-1])  # step counts show them
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

    # PPO on the whole batch: the loss does not read the next observation.
    actor, critic = make_networks()
    rows = full.clone()
    with torch.no_grad():
        GAE(gamma=0.99, lmbda=0.95, value_network=critic)(actor(rows))
    losses = ClipPPOLoss(actor, critic)(rows)
    without_next = ClipPPOLoss(actor, critic)(rows.exclude(NEXT_OBS))
    assert NEXT_OBS not in rows.exclude(NEXT_OBS).keys(True, True)
    for key in ("loss_objective", "loss_critic"):
        assert torch.equal(losses[key], without_next[key])

    # The version to copy: shares of terminated rows, of which spans have more than the buffer.
    def terminated_share(rows, **options):
        torch.manual_seed(SEED)
        sampler = SliceSampler(slice_len=SLICE_FRAMES, traj_key=TRAJ_KEY, **options)
        parts = {"storage": LazyTensorStorage(len(rows)), "sampler": sampler}
        replayed = TensorDictReplayBuffer(**parts, transform=by_count, batch_size=BATCH_FRAMES)
        replayed.extend(rows)
        drawn = torch.cat([replayed.sample() for _ in range(100)])
        ended = drawn["next", "terminated"].squeeze(-1)
        absent = drawn[NEXT_OBS].isnan().any(-1)
        cut = rows["next", "truncated"][drawn["index"].flatten()].squeeze(-1)
        assert absent[cut].all()
        return float(ended[~absent | ended].float().mean())

    counted = collect(StepCounter(), compact_obs=True).cpu()
    in_buffer = float(counted["next", "terminated"].float().mean())
    spans = terminated_share(counted, span=True)
    terminated_share(compact.cpu())  # where trajectories are truncated
    assert 0 < terminated_share(counted) < 0.8 * in_buffer < in_buffer < 0.9 * spans

    # A filled integer is a next observation like any other for GAE.
    pixels = compact.select("observation").clone()
    pixels["observation"] = (pixels["observation"] * 50 + 100).to(torch.uint8)
    pixels[NEXT_OBS] = torch.zeros_like(pixels["observation"])
    assert GAE._sanitize_next_obs_nan(pixels, ["observation"]) is pixels

    # Prioritized slices are rebuilt alike, also after priorities were set.
    from torchrl.data import PrioritizedSliceSampler

    sampler = PrioritizedSliceSampler(N_FRAMES, 0.7, 0.5, slice_len=SLICE_FRAMES, traj_key=TRAJ_KEY)
    prioritized = TensorDictReplayBuffer(
        storage=LazyTensorStorage(N_FRAMES, device=DEVICE),
        sampler=sampler,
        transform=by_count,
        batch_size=BATCH_FRAMES,
    )
    prioritized.extend(compact.clone())
    for _ in range(2):
        drawn = prioritized.sample()
        known = ~drawn[NEXT_OBS].isnan().any(-1)
        assert known.sum() >= BATCH_FRAMES // 2
        index = drawn["index"].flatten()
        assert torch.equal(drawn[NEXT_OBS][known], full[NEXT_OBS][index][known])
        kept = drawn[known]
        prioritized.update_tensordict_priority(kept.set("td_error", torch.rand(len(kept))))

    # With several environments the storage has two dimensions.
    from torchrl.envs import SerialEnv

    def three(**options):
        env = TransformedEnv(SerialEnv(3, lambda: GymEnv("CartPole-v1")), StepCounter())
        env.set_seed(SEED)
        collector = Collector(env, frames_per_batch=90, total_frames=90, **options)
        torch.manual_seed(SEED)
        rows = next(iter(collector)).set("row", torch.arange(90).view(3, 30))
        collector.shutdown()
        return rows

    cells = LazyTensorStorage(90, ndim=2)
    drawn = make_buffer(three(compact_obs=True), by_count, cells).sample()
    known = ~drawn[NEXT_OBS].isnan().any(-1)
    real_next = three()[NEXT_OBS].flatten(0, 1)[drawn["row"]]
    assert known.sum() >= BATCH_FRAMES // 2
    assert torch.equal(drawn[NEXT_OBS][known], real_next[known])

    # Rows without a next observation end the slices: without them GAE sums across slices.
    estimator = GAE(gamma=0.99, lmbda=0.95, value_network=make_networks()[1])
    absent = compact_batch[NEXT_OBS].isnan().any(-1)
    assert compact_batch[absent]["next", "done"].all()
    whole = estimator(compact_batch.clone())["advantage"][~absent]
    without = estimator(compact_batch[~absent].clone())["advantage"]
    assert without.isfinite().all()
    assert (whole - without).abs().max() > whole.std()
