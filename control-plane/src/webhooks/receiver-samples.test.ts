/** The receivers in docs/webhooks.md are run as they are printed, and get real deliveries. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { after, test } from 'node:test'
import { createOutboundGuard } from '@warren/kit/outbound/guard'
import { until } from '@warren/kit/testing/until'
import { createSender } from './send.ts'

const page = await readFile(new URL('../../../docs/webhooks.md', import.meta.url), 'utf8')
const sampleOf = (language: string): string => new RegExp(`\`\`\`${language}\n(.*?)\`\`\``, 's').exec(page)![1]!

const sender = createSender(createOutboundGuard([]))
after(() => sender.close())

async function findFreePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await new Promise((resolve) => server.once('listening', resolve))
  const { port } = server.address() as { port: number }
  await new Promise((resolve) => server.close(resolve))
  return port
}

const PROGRAMS = {
  js: [process.execPath, ['--input-type=module', '-e']],
  python: ['python3', ['-c']],
} as const

for (const [language, [command, args]] of Object.entries(PROGRAMS)) {
  test(`the receiver in ${language} accepts what Warren signs, and nothing else`, async () => {
    const port = await findFreePort()
    const child = spawn(command, [...args, sampleOf(language)], {
      env: { PATH: process.env.PATH, WEBHOOK_SECRET: 'whsec_right', PORT: String(port) },
    })
    after(() => child.kill('SIGKILL'))
    let output = ''
    let errors = ''
    child.stdout.on('data', (chunk) => (output += chunk))
    child.stderr.on('data', (chunk) => (errors += chunk))
    const body = JSON.stringify({ event: 'sandbox.create', occurredAt: 'x', data: { name: 'ü💥' } })
    const send = (secret: string, now = new Date()) =>
      sender.send(
        {
          url: `http://127.0.0.1:${port}/`,
          secret,
          allowLoopback: true,
          delivery: 'd',
          action: 'sandbox.create',
          body,
        },
        now,
      )
    await until(async () => (await send('whsec_right')) === undefined, `the receiver listens ${errors}`)

    assert.equal(await send('whsec_wrong'), 'HTTP 401')
    assert.equal(await send('whsec_right', new Date(Date.now() - 600_000)), 'HTTP 401')
    const unsigned = await fetch(`http://127.0.0.1:${port}/`, { method: 'POST', body })
    assert.equal(unsigned.status, 401)
    await until(() => output === 'sandbox.create\n')
  })
}
