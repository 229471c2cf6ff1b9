-- Slurm's job_submit plugin for the bridge to Kubernetes. Managed by railweld.
--
-- A batch job in a bridge partition gets one line in front of its script, so that slurmd starts the
-- bridge's client in its place. What cannot work is refused here, where its user sees it. Nothing is
-- opened, asked or waited for: slurmctld holds its locks meanwhile.
--
-- A site with a job_submit.lua of its own loads this file from it:
--   local bridge = dofile("/etc/slurm/railweld_bridge.lua")
-- and calls bridge.submit(job_desc, part_list) and bridge.modify(job_desc, job_rec) where it sees fit.

local settings = --[[SETTINGS]] {
  client = "/usr/libexec/railweld/exec",
  partitions = { "gpu" },
  paths = {},
} --[[END]]

local SCRIPT_LIMIT = 900 * 1024
local NO_VAL = 4294967294
local NO_VAL16 = 65534
local PREFIX = "#!" .. settings.client .. "\n"

local bridged = {}
for _, name in ipairs(settings.partitions) do
  bridged[name] = true
end

local M = {}

local function say(text, ...)
  slurm.log_user("bridge: " .. text, ...)
end

local function given(value, none)
  return value ~= nil and value ~= none and value ~= 4294967295 and value ~= 65535
end

-- Whether all partitions of a list are the bridge's: true, false, or nil with both kinds in it.
local function kind(partitions)
  local inside, outside = false, false
  for name in string.gmatch(partitions, "[^,]+") do
    if bridged[name] then
      inside = true
    else
      outside = true
    end
  end
  if inside and outside then
    return nil
  end
  return inside
end

-- The same of the partitions that a job asks for, or gets without asking.
local function wanted(partition, part_list)
  if partition ~= nil and partition ~= "" then
    return kind(partition)
  end
  for name, part in pairs(part_list or {}) do
    if part.flag_default == 1 then
      return bridged[name] == true
    end
  end
  return false
end

local function below(path, roots)
  for _, root in ipairs(roots) do
    if path == root or string.sub(path, 1, #root + 1) == root .. "/" then
      return true
    end
  end
  return false
end

local function nodes_are_open(job)
  return not given(job.min_nodes, NO_VAL) and not given(job.ntasks_per_node, NO_VAL16)
end

function M.submit(job, part_list)
  local inside = wanted(job.partition, part_list)
  if inside == nil then
    say("partitions %s: some run on Kubernetes and some do not; name one kind", job.partition)
    return slurm.ERROR
  end
  if not inside then
    return slurm.SUCCESS
  end
  if job.script == nil or job.script == "" then
    say("this partition runs batch jobs only: submit with sbatch; srun works inside the script, and railweld-bridge shell JOB opens a shell in it")
    return slurm.ERROR
  end
  if given(job.het_job_offset, NO_VAL) then
    say("heterogeneous jobs (`:` or #SBATCH hetjob) cannot run here: submit one job per kind of node")
    return slurm.ERROR
  end
  if #job.script > SCRIPT_LIMIT then
    say("the script has %d bytes, more than %d: put what is large on shared storage", #job.script, SCRIPT_LIMIT)
    return slurm.ERROR
  end
  local directory = job.work_dir or ""
  if #settings.paths > 0 then
    if string.find(directory .. "/", "/../", 1, true) or not below(directory, settings.paths) then
      say("working directory %s: not on storage that the nodes have; submit from %s, or use --chdir",
        directory, table.concat(settings.paths, ", "))
      return slurm.ERROR
    end
  end
  -- Submitted again (federation, another plugin): one line is enough.
  if string.sub(job.script, 1, #PREFIX) ~= PREFIX then
    job.script = PREFIX .. job.script
  end
  if nodes_are_open(job) and given(job.num_tasks, NO_VAL) and job.num_tasks > 1 then
    say("note: neither --nodes nor --ntasks-per-node is given; how many nodes %d tasks become depends on the CPUs of a node", job.num_tasks)
  end
  return slurm.SUCCESS
end

function M.modify(job, record)
  -- The whole list of a job that named several; in here also once it runs in one of them.
  local was = kind(record.partition or "")
  if job.partition ~= nil and job.partition ~= "" then
    local will = kind(job.partition)
    if will == nil or will ~= was then
      say("a job cannot move between partitions that run on Kubernetes and others: submit it again")
      return slurm.ERROR
    end
  end
  -- Running (1) or suspended (2): its pods are placed already.
  local running = record.job_state == 1 or record.job_state == 2
  if was ~= false and running and (given(job.min_nodes, NO_VAL) or job.req_nodes ~= nil) then
    say("a running job cannot be resized here: submit it again")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

function slurm_job_submit(job_desc, part_list, submit_uid)
  return M.submit(job_desc, part_list)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return M.modify(job_desc, job_rec)
end

slurm.log_info("railweld bridge: partitions %s", table.concat(settings.partitions, ","))
return slurm.SUCCESS
