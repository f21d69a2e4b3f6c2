# ruff: noqa: F821
# Runs at the end of tutorials/memory/activation_memory.py, with its names.

if __name__ == "__main__":
    import pytest
    from torchrl.objectives import ClipPPOLoss

    for kind, n_states in (("GRU", 1), ("LSTM", 2)):
        kept_floats = 4 + 2 * n_states * 64
        kept = n_rows * (kept_floats * FLOAT32_BYTES + 2)
        assert kept <= saved_bytes[kind, "scan"] < saved_bytes[kind, "pad"]
        if DEVICE.type == "cpu":
            assert saved_bytes[kind, "scan"] == kept
    assert is_init[1:].any()  # resets in the middle of the batch
    unmarked = TensorDictReplayBuffer(
        storage=LazyTensorStorage(N_FRAMES, device=DEVICE),
        sampler=SliceSampler(slice_len=4, traj_key=("collector", "traj_ids")),
        batch_size=8,
    )
    unmarked.extend(batch.exclude("is_init"))
    assert "is_init" not in unmarked.sample()
    with pytest.raises(ValueError, match="recurrent_recompute"):
        recurrent("LSTM", "pad", **RECOMPUTE)

    assert estimator.value_chunk_dim == 0
    minibatch = estimator(data.clone())
    with PeakBytes() as meter:
        ClipPPOLoss(critic, critic).loss_critic(minibatch)
    assert meter.peak > 2 * N_FRAMES * 512 * FLOAT32_BYTES
