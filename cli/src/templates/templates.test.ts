import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, test } from 'node:test'
import { followLog } from './api.ts'
import { BuildProgress } from './progress.ts'

const frame = (number: number, text: string) => ({
  ...{ stream: `${text}\n`, line: text, ts: '2026-01-01T00:00:00.000Z', attempt: 1, number },
})

async function serve(respond: (response: ServerResponse, url: string) => void) {
  const server = createServer((request, response) => respond(response, request.url!))
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  after(() => {
    server.closeAllConnections()
    server.close()
  })
  return { baseUrl: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, key: 'k' }
}

function terminal() {
  let written = ''
  const output = {
    isTTY: true,
    columns: 100,
    write: (text: string) => {
      written += text
    },
  }
  // biome-ignore lint/suspicious/noControlCharactersInRegex: what a terminal interprets.
  return { output, lines: () => written.replace(/\x1b\[[0-9;]*[A-Za-z]|\r/g, '').split('\n') }
}

test('a log whose connection is lost continues after the last line', async () => {
  const urls: string[] = []
  const api = await serve((response, url) => {
    urls.push(url)
    if (urls.length === 1) {
      response.write(`${JSON.stringify(frame(1, 'one'))}\n${JSON.stringify(frame(2, 'two'))}\n`)
      return void setImmediate(() => response.destroy())
    }
    if (urls.length === 2) return void response.writeHead(503).end('{"message":"database unreachable"}')
    response.end(`${JSON.stringify(frame(3, 'three'))}\n{"final":true,"status":"ready"}\n`)
  })
  const lines: string[] = []

  const status = await followLog(api, 'tools', { onLine: ({ line }) => lines.push(line), retryMs: 1 })

  assert.equal(status, 'ready')
  assert.deepEqual(lines, ['one', 'two', 'three'])
  assert.deepEqual(
    urls,
    [0, 2, 2].map((line) => `/v1/templates/tools/logs?follow=true&after=${line}&attempt=0`),
  )
})

test('a log that does not exist is reported at once', async () => {
  const api = await serve((response) =>
    response.writeHead(404).end('{"status":"fail","data":{"message":"template not found","code":"not_found"}}'),
  )

  await assert.rejects(followLog(api, 'none', { onLine() {} }), /template not found/)
})

test('a pipe gets the log as it is', () => {
  let written = ''
  const progress = new BuildProgress({ write: (text) => (written += text) })

  for (const line of ['#1 [1/1] RUN make', 'compiling', '#1 DONE 1.2s']) progress.add(line)
  progress.close()

  assert.equal(written, '#1 [1/1] RUN make\ncompiling\n#1 DONE 1.2s\n')
})

test('a terminal shows each step with its time, and hides the output of those that succeed', () => {
  const { output, lines } = terminal()
  const progress = new BuildProgress(output, () => 0)

  const log = [
    'line 4, CMD: no effect',
    '#1 [1/3] RUN apt',
    '#1 CACHED',
    '#2 [2/3] RUN make',
    '#1 DONE 9s',
    '#2 DONE 1.2s',
  ]
  for (const line of [...log, 'packing', '#3 [3/3] RUN test', 'a failure', 'ERROR: RUN test ended with exit code 1']) {
    progress.add(line)
  }
  progress.fail()

  const shown = lines().filter((line) => line !== '')
  const last = shown.slice(-3)
  assert.match(last[0]!, /^ => ERROR \[3\/3\] RUN test {2}[\d.]+s$/)
  assert.deepEqual(last.slice(1), ['    a failure', '    ERROR: RUN test ended with exit code 1'])
  for (const line of ['line 4, CMD: no effect', ' => CACHED [1/3] RUN apt', ' => [2/3] RUN make  1.2s', 'packing']) {
    assert.ok(shown.includes(line), `${line} in ${JSON.stringify(shown)}`)
  }
})
