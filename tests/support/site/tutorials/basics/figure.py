"""
Figure
======

A script that draws.
"""

import matplotlib.pyplot as plt

plt.title("Line")
plt.plot([0, 1])
plt.show()
