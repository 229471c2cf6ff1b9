"""railweld.versions"""
