-- Find: return the record (a list), or nil.

local found = read_record(clock())
return found[1] and found
