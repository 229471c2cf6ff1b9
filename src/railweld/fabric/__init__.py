"""railweld.fabric"""
