/**
 * The whole control plane in a separate process, for tests that kill or stop it. It sends its port to the parent when
 * it listens.
 */
import type { AddressInfo } from 'node:net'
import { CRASH_POINTS_VARIABLE } from '@warren/kit/crash-point'
import { createLog } from '@warren/kit/log'
import { buildApp } from '../app.ts'
import { connectDatabase } from '../db/connect.ts'
import { JOBS, SWEEPS } from '../jobs/registry.ts'
import { startWorker } from '../jobs/worker.ts'
import { createTestDeps, type TestUser } from './app.ts'
import { STORE_CONFIG } from './disks.ts'
import { startTestProcess, type TestProcess } from './test-process.ts'
import type { HostedApp } from './with-host.ts'

export type ApiProcess = Pick<TestProcess, 'child' | 'ended' | 'kill'> & {
  /** Returns the status of a create; rejects when the process dies before it responds. */
  create(who: TestUser, body: object, headers?: Record<string, string>): Promise<number>
  /** Any other request, the same way. */
  send(method: string, path: string, who: TestUser, body?: object): Promise<number>
}

/** `crashPoints` is the directory with the commands for its crash points (kit/src/crash-point.ts). */
export async function startApiProcess(
  { deps, host }: Pick<HostedApp, 'deps' | 'host'>,
  options: { crashPoints?: string } = {},
): Promise<ApiProcess> {
  const { child, ended, kill, receive } = startTestProcess(deps, import.meta.filename, {
    WARREN_HOST_SOCKET: host.socket,
    [CRASH_POINTS_VARIABLE]: options.crashPoints,
  })
  const { port } = await receive((message: { port?: number }) => message.port !== undefined, 'the API listens')
  const send = async (method: string, path: string, headers: Record<string, string>, body?: object) => {
    const payload = body === undefined ? null : JSON.stringify(body)
    const response = await fetch(`http://127.0.0.1:${port}${path}`, { method, headers, body: payload })
    await response.text()
    return response.status
  }
  return {
    child,
    ended,
    create: (who, body, headers = {}) =>
      send('POST', '/v1/sandboxes', { ...who.headers, ...headers }, { shape: 's-1vcpu-256mb', ...body }),
    send: (method, path, who, body) => send(method, path, who.headers, body),
    kill,
  }
}

if (import.meta.main) {
  const log = createLog({ name: 'api-process', level: process.env.WARREN_LOG_LEVEL ?? 'fatal', format: 'json' })
  const database = connectDatabase(process.env.DATABASE_URL!, log)
  const deps = createTestDeps(database, { ...STORE_CONFIG, hostSocket: process.env.WARREN_HOST_SOCKET! })
  const app = await buildApp(deps)
  await startWorker(deps, { jobs: JOBS, sweeps: SWEEPS })
  await app.listen({ host: '127.0.0.1', port: 0 })
  process.send?.({ port: (app.server.address() as AddressInfo).port })
  process.on('disconnect', () => process.exit(0))
}
