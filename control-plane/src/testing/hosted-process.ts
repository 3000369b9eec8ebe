/**
 * The control plane with a fake host, as a program: tests of other services start it and use its API. It creates the account
 * of the deployment gateway in the database of DATABASE_URL, and sends its port and that account's key to the parent.
 */
import { mkdtemp, rm } from 'node:fs/promises'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { createLog } from '@warren/kit/log'
import { buildApp } from '../app.ts'
import { connectDatabase } from '../db/connect.ts'
import { migrate } from '../db/migrate.ts'
import { watchHosts } from '../hosts/heartbeat.ts'
import { watchCredentialChanges } from '../http/watch-credentials.ts'
import { JOBS, SWEEPS } from '../jobs/registry.ts'
import { startWorker } from '../jobs/worker.ts'
import { ensureGatewayUser } from '../users/service-users.ts'
import { createTestDeps } from './app.ts'
import { FakeHost } from './fake-host.ts'
import { TEST_SECRET_KEY } from './secrets.ts'

const MEM_MIB = 1024 * 1024

const folder = await mkdtemp(path.join(tmpdir(), 'warren-hosted-'))
const host = new FakeHost(folder, { memMib: MEM_MIB })
await host.start()
const log = createLog({ name: 'hosted-process', level: process.env.WARREN_LOG_LEVEL ?? 'fatal', format: 'json' })
const database = connectDatabase(process.env.DATABASE_URL!, log)
await migrate(database)
await database.pool.query('insert into secret_keys (id, current) values ($1, true)', [TEST_SECRET_KEY.id])
const deps = createTestDeps(database, { hostSocket: host.socket })
const key = await ensureGatewayUser(deps.db, path.join(folder, 'gateway.key'))
watchCredentialChanges(deps)
const app = await buildApp(deps)
await startWorker(deps, { jobs: JOBS, sweeps: SWEEPS })
await watchHosts.run(deps)
await app.listen({ host: '127.0.0.1', port: 0 })
process.send?.({ port: (app.server.address() as AddressInfo).port, key })

process.on('disconnect', async () => {
  await host.remove()
  await rm(folder, { recursive: true, force: true })
  process.exit(0)
})
