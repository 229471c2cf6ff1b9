module railweld/tools/clock-guard

go 1.26.0
