"""What oncekey costs, measured against the limits of the machine that it runs on: `./dev bench`.

Only ratios count, and only within one run: whatever is compared runs in turn, round by round, on
the same servers. Goals are printed beside the results; nothing fails because it is slow.
"""
