/** Records the entries with the given ids and dies at the moment at which a response would be sent. */
import { createAuditLog } from '../audit/log.ts'

const log = createAuditLog({ url: process.env.DATABASE_URL! }, console)
const record = (id: string) =>
  log.record({
    id,
    at: new Date(),
    user_id: 'usr_killed',
    actor_kind: 'user',
    actor: 'usr_killed',
    credential: null,
    action: 'x',
    target: null,
    outcome: 'success',
    status: 200,
    code: null,
    request_id: null,
  })
for (const id of process.argv.slice(2)) await record(id)
process.kill(process.pid, 'SIGKILL')
