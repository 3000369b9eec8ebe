/**
 * A temporary PostgreSQL for tests. `npm test` starts one for all files and passes its URL in the environment; a test
 * file that is run alone starts its own.
 */
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { startPostgres } from './server.ts'

export const TEST_POSTGRES_VARIABLE = 'WARREN_TEST_POSTGRES_URL'

export async function startTestPostgres(): Promise<{ url: string; pid: number; stop(): Promise<void> }> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-test-'))
  const server = await startPostgres({
    dir: path.join(folder, 'postgres'),
    logFile: path.join(folder, 'postgres.log'),
    durable: false,
  })
  // Tests start services of other data directories on it. The folder around it keeps other users of the machine out.
  await chmod(new URL(server.url.replace('@/', '@localhost/')).searchParams.get('host')!, 0o755)
  return {
    url: server.url,
    pid: server.pid,
    async stop() {
      await server.stop()
      await rm(folder, { recursive: true, force: true })
    },
  }
}
