# ruff: noqa: F821
# Runs at the end of tutorials/memory/saving_by_observation_size.py, with its names.

if __name__ == "__main__":
    assert all(saving < SAVING_LIMIT for saving in compact_savings)
    assert round(100 * compact_savings[-1], 2) == 49.97
    default, total = batches["default"], {name: b.bytes() for name, b in batches.items()}
    assert total["default"] == 13_200
    assert total["compact_obs"] == 10_000
    assert total["delta"] == 11_600
    assert saved["delta"] == saved["compact_obs"] / 2
    assert total["delta and compact_obs"] == total["delta"]
    assert total["no trajectory ids"] == total["delta"]
    assert saved["markers"] < 0
    assert 0 < saved["markers, compact_obs"] < saved["compact_obs"] / 2
    assert torch.equal(batches["compact_obs"]["observation"], default["observation"])

    # Each next observation is a copy of the following row, but for the ends of trajectories.
    ids, next_obs = default["collector", "traj_ids"], default["next", "observation"][:-1]
    same_trajectory = ids[1:] == ids[:-1]
    is_copy = next_obs == default["observation"][1:]
    assert torch.equal(is_copy.all(-1), same_trajectory)
    assert int(same_trajectory.sum()) == N_FRAMES - ids.unique().numel()
