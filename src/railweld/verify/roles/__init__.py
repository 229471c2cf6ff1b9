"""railweld.verify.roles"""
