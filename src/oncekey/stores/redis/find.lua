-- Find: return the record (a list), or nil.

local found = look(clock())
return found[1] and found
