module railweld/tools/dcgm-exporter

go 1.26.0
