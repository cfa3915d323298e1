-- Id and unique key of a job, as spelled in keys. A compressed job cannot be read here.

local function as_in_keys(text)
  return (string.gsub(text, '[^A-Za-z0-9_.+@=-]', function(character)
    return string.format('%%%02X', string.byte(character))
  end))
end

local function text_in(value)
  return type(value) == 'string' and value ~= '' and value or nil
end

-- Returns its id and its unique key, as spelled in keys; nil for what it has not.
local function names_in(item)
  local known, job = pcall(cjson.decode, item)
  if not known or type(job) ~= 'table' then return end
  local meta = type(job._penstock) == 'table' and job._penstock or {}
  local own = text_in(job.task) and text_in(job.id)
  local name = own or text_in(meta.id) or text_in(job.job_id) or text_in(job.id)
  local unique = text_in(meta.unique)
  return name and as_in_keys(name), unique and as_in_keys(unique)
end
