"""railweld.site"""
