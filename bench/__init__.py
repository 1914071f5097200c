"""What oncekey costs, measured against the limits of the machine: `./dev bench`.

Only ratios within one run count: contenders take turns, round by round, on the same servers. Goals
are printed beside the results; nothing fails because it is slow.
"""
