"""
Sums
====

A script that prints.
"""

# %%
# It adds.

print("the sum is", 2 + 3)
