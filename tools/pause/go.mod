module railweld/tools/pause

go 1.26.0
