"""
Figure
======

A script that draws.
"""

import matplotlib.pyplot as plt

plt.title("Line")
plt.gcf().set_label("A line that rises from zero to one.")
plt.plot([0, 1])
plt.show()
