/**
 * Rows of a sandbox that is a process of this machine could reach that process without Warren. What they measure as Warren must
 * pass the API of the control plane, which reaches a guest only through its host agent. So without an API that works, no
 * row may get anything done.
 */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { ROWS } from '../registry.ts'
import type { Fixture, Row, Run } from '../row.ts'
import { Api } from '../vm/api.ts'
import { nativeInstance } from './instance.ts'

let requests = 0
const server = createServer((request, response) => {
  requests++
  request.resume()
  response.writeHead(503, { 'content-type': 'application/json' }).end('{"message":"no Warren here"}')
}).listen(0, '127.0.0.1')
await once(server, 'listening')
const api = new Api(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, 'none')
after(async () => {
  await api.close()
  server.close()
})

/** As of a Warren whose only process is this one, for the row that counts processor time. */
const dataDir = mkdtempSync(path.join(tmpdir(), 'warren-bench-'))
writeFileSync(path.join(dataDir, 'instance.json'), JSON.stringify({ pid: process.pid }))
after(() => rmSync(dataDir, { recursive: true }))

const run: Run = {
  seconds: 0,
  quick: true,
  signal: new AbortController().signal,
  report() {},
  async open<T>(fixture: Fixture<T>): Promise<T> {
    // The only fixture that this test may start: what would be Warren does nothing.
    assert.equal(fixture, nativeInstance, 'a row prepares something before it has asked Warren for a sandbox')
    return { api, dataDir } as T
  },
  defer: () => assert.fail('a row starts something before it has asked Warren for a sandbox'),
}

const NATIVE_ROWS = ROWS.filter(({ name }) => name.startsWith('native-'))

test('there are rows without a guest', () => {
  assert.ok(NATIVE_ROWS.length >= 10, NATIVE_ROWS.map(({ name }) => name).join())
})

for (const row of NATIVE_ROWS) {
  test(`${row.name} gets nothing done without the API`, async () => {
    requests = 0

    assert.equal(await measureShare(row), 0)

    assert.ok(requests > 0, 'the API was not asked')
  })
}

/** The share of attempts that succeeded, in a measurement or a turn of a comparison. A row that gives up has none. */
async function measureShare(row: Row): Promise<number> {
  try {
    if ('whyNot' in row.comparison) return (await row.measure(run)).ok
    const subject = await row.comparison.open(run, api, dataDir)
    const { samples, failed } = await subject.takeTurn()
    return failed >= samples.length ? 0 : 1
  } catch (error) {
    assert.ok(!(error instanceof assert.AssertionError), error as Error)
    return 0
  }
}
