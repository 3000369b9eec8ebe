/** Starts the registry of Debian's docker-registry package on loopback, for one test. */
import { mkdir, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import path from 'node:path'
import type { TestContext } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { runCommand } from '../run-command.ts'

export async function findTestRegistry(): Promise<string | undefined> {
  const { stdout } = await runCommand('sh', ['-c', 'command -v docker-registry'])
  return stdout.trim() || undefined
}

/** Returns host and port. */
export async function startRegistry(t: TestContext, program: string, folder: string): Promise<string> {
  const host = `127.0.0.1:${await findPort()}`
  await mkdir(folder)
  const config = path.join(folder, 'config.yml')
  await writeFile(
    config,
    JSON.stringify({ version: 0.1, storage: { filesystem: { rootdirectory: folder } }, http: { addr: host } }),
  )
  const stopping = new AbortController()
  const running = runCommand(program, ['serve', config], { signal: stopping.signal, timeoutMs: 120_000 }).catch(
    () => {},
  )
  t.after(async () => {
    stopping.abort()
    await running
  })
  await until(async () => (await fetch(`http://${host}/v2/`).catch(() => undefined))?.ok, 'the registry responds')
  return host
}

async function findPort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  const address = server.address()
  await new Promise((resolve) => server.close(resolve))
  if (address === null || typeof address === 'string') throw new Error('a TCP server has a port')
  return address.port
}
