"""One HTML file about a site: topology, agreement per link, bandwidth, versions, findings.

`data` gathers, `charts` draws with plotly, `page` puts both into one file that needs no network.
"""
