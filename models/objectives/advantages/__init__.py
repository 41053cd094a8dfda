"""Advantages: `(rows, *, settings) -> (N,) or (M,) float64`. N completions, M tokens.

Made once an update, or with `when="step"` anew for every optimiser step. Conventions, the same for all, where peers
differ or are silent: rows that could not be judged (NaN) leave their group, mean and count included, and get 0;
a group of one judged row gets 0, since nothing is left to compare it with;
a group whose judged rewards are all equal gets exactly 0, whatever rounding does to its mean.
Exceptions are those that compare with more than the group: `reinforce_plus_plus` (the batch), `ngrpo` (a virtual row),
`hbpo` (the reward of a budget).
Rows of another origin than `own` are compared like the others, unless a method says otherwise.
"""
