/**
 * Cleans up after a host agent that was killed or did not stop in time. `warren start` runs it when it stops and the host
 * agent did not end properly; otherwise the next start of the host agent would do it. Sandboxes keep running.
 */
import { createLog, logFormat } from '@warren/kit/log'
import { readHostConfig } from '../config.ts'
import { acquireProcessLock } from '../process-lock.ts'
import { removeLeftovers } from '../remove-leftovers.ts'

const config = readHostConfig(process.env)
const log = createLog({
  name: 'host-agent',
  level: config.logLevel,
  format: logFormat(config.logFormat, process.stdout.isTTY),
})
// The launcher of the killed host agent may still be working off its last request.
const release = await acquireProcessLock('launcher', config.instance)
await removeLeftovers(config, log, {})
release()
process.exit(0)
