"""Measurements. Figures are ratios or counts of one run on one machine; nothing here is a gate."""
