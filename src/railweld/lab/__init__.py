"""railweld.lab"""
