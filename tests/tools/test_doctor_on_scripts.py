"""`tools/doctor_on_scripts.py` stops a script in its loop and gives the doctor what lives there."""

import textwrap

import pytest

from tools import doctor_on_scripts

LOOP = """
    import torch
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.envs import GymEnv
    from torchrl.modules import MLP, QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate

    def main():
        env = GymEnv("CartPole-v1")
        net = MLP(in_features=4, out_features=2, num_cells=[16])
        policy = QValueActor(net, in_keys=["observation"], spec=env.action_spec)
        collector = Collector(
            env, policy, frames_per_batch=20, total_frames=-1,
            auto_register_policy_transforms=False,
        )
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(500), batch_size=16)
        loss = DQNLoss(policy, action_space=env.action_spec, delay_value=True)
        updater = SoftUpdate(loss, eps=0.99)
        optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
        for batch in collector:
            buffer.extend(batch.reshape(-1))
            for _ in range(4):
                loss(buffer.sample())["loss"].backward()
                optimizer.step()
                optimizer.zero_grad()
                {step}

    if __name__ == "__main__":
        main()
"""


def said_of(tmp_path, text):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    return doctor_on_scripts.in_a_child(script, calls=12, seconds=60)


@pytest.mark.parametrize("step", ["updater.step()", "pass"])
def test_a_loop_is_stopped_and_looked_at(tmp_path, step):
    said = said_of(tmp_path, LOOP.format(step=step))
    assert said["ended"] == "stopped in call 12 of a loss"
    assert set(said["given"]) >= {"collector", "loss_module", "replay_buffer", "target_updater"}
    found = [one["check"] for one in said["findings"] if one["verdict"] == "applies"]
    assert found == ([] if step == "updater.step()" else ["target_updater_never_steps"])


def test_what_a_script_raises_is_told(tmp_path):
    said = said_of(tmp_path, "raise ValueError('the script itself')")
    assert said["ended"] == "ValueError: the script itself"
    assert [one for one in said["findings"] if one["verdict"] == "applies"] == []
    assert said["given"] == []
