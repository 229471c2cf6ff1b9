"""railweld.verify"""
