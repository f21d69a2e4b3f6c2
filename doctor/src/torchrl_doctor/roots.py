"""Which symptom is the root of which: mend the root, and what follows from it is gone."""

from __future__ import annotations

# By the name of a symptom: those that it may follow from, the likeliest first.
FOLLOWS = {
    # A sample whose slices have no ends is one long trajectory to GAE.
    "advantages_leak_between_environments": ("sequences_run_into_each_other",),
    "advantages_wrong_with_several_workers": ("sequences_run_into_each_other",),
    # Rows drawn one by one are no trajectory either.
    "advantages_look_like_noise": (
        "ppo_worse_with_small_minibatches",
        "ppo_ratio_off_in_minibatches",
    ),
    # Another copy has taken the files of this one.
    "buffer_outlives_its_files": ("files_gone_after_a_copy",),
    # The environment has overwritten the observation before the step.
    "data_set_is_shifted": ("a_step_changes_the_last_one",),
    # A random policy writes no log-probability.
    "log_prob_not_found": ("actions_stay_random",),
    "log_probability_is_zero": ("actions_stay_random",),
    # Both miss the primer.
    "lstm_raises_in_parallel_env_only": ("lstm_forgets_every_step",),
    # The updater is one of another loss.
    "target_updater_never_steps": ("q_values_stop_improving",),
}


def root_of(slug, slugs):
    """The one of *slugs* that *slug* follows from; None where it is a root itself."""
    return next((one for one in FOLLOWS.get(slug, ()) if one in slugs and one != slug), None)


def by_root(findings):
    """Pairs of a root and what follows from it, the root that explains most first.

    Of those that explain as much, a loud one is before a silent one.
    """
    by_slug = {one.slug: one for one in findings}
    followers = {}
    for slug in by_slug:
        root, seen = slug, {slug}
        while (above := root_of(root, by_slug)) and above not in seen:
            root = above
            seen.add(root)
        followers.setdefault(root, [])
        if root != slug:
            followers[root].append(by_slug[slug])
    pairs = [(by_slug[root], below) for root, below in followers.items()]
    return sorted(pairs, key=lambda pair: (-len(pair[1]), pair[0].effect != "loud"))
