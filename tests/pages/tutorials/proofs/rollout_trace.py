# ruff: noqa: F821
# Runs at the end of tutorials/collectors/rollout_trace.py, with its names.

import weakref

from torchrl.collectors import MultiSyncCollector

# Every step repeats the calls of the first.
assert [event.who for event in several[1:]] == N_STEPS * [event.who for event in defaults[1:]]
assert sum(event.who == "policy" for event in several) == N_STEPS

# The simulated device: unequal, a cast to it copies; a cast to the CPU makes an object, not a copy.
row = TensorDict({"observation": torch.zeros(OBS_FLOATS)})  # no device, like the carrier
place = {name: row.to(name)["observation"].data_ptr() for name in ("cpu", "cpu:0")}
assert torch.device("cpu") != torch.device("cpu:0")
cast = row.to("cpu")
assert cast is not row
assert cast.to("cpu") is cast
assert place["cpu"] == row["observation"].data_ptr() != place["cpu:0"]

random_across = trace(make_collector(init_random_frames=BUFFER_FRAMES, **ACROSS))
calls = lines(random_across)
assert "_sync_policy()" not in calls
assert calls[1] == "rand_action(A) -> A"
assert calls.index("A.to(cpu) -> B") + 1 == calls.index("_sync_env()")

direct = {"replay_buffer": make_buffer(), "extend_buffer": False}
last = trace(make_collector(steps=N_STEPS, total_frames=N_STEPS, **direct))
assert last[-1].call == "add(C)"
assert sum(event.who == "ids" for event in last) == N_STEPS - 1

direct = {"replay_buffer": make_buffer(), "extend_buffer": False}
collector = make_collector(steps=N_STEPS, **direct)
first_carrier = weakref.ref(collector._carrier)
collector.rollout()
collector.shutdown()
assert first_carrier() is None

# The warm-up is longer than the rollout, so nothing is compiled. At each step the loop tells CUDA
# graphs that one begins; without CUDA there is nothing to tell.
mark = mock.patch("torchrl.collectors._single.cudagraph_mark_step_begin")
with mark as marked:
    compiled = trace(make_collector(compile_policy={"warmup": 10 * N_STEPS}))
assert marked.called
assert lines(compiled) == [
    "carrier = A",
    "policy(A) -> A",
    "A.select(action) -> B",
    "B.clone() -> C",
    "A.update(C) -> A",
    "step_and_maybe_reset(A) -> A, D",
    "carrier = D",
    "D.clear_device_() -> D",
    "D.set(collector) -> D",
    "_update_traj_ids(A)",
]

assert not hasattr(MultiSyncCollector, "rollout")
assert not hasattr(MultiSyncCollector, "_sync_env")

assert [event.who for event in own[3:]] == [event.who for event in defaults[2:]]
assert not any("clone" in line for line in lines(own))  # the copy of the policy

assert not make_collector(storing_device="cpu")._cast_to_policy_device
assert lines(answer)[3:5] == ["A.to(cpu) -> C", "_sync_storage()"]
