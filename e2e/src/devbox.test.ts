/** What programs in devbox:1 find: its tools, and the certificate authorities and proxies that the operator sets. */
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, describe, test } from 'node:test'
import { promisify } from 'node:util'
import { stop } from './support/instance.ts'
import { createSandbox, pauseSandbox, resumeSandbox, runShell } from './support/sandboxes.ts'
import {
  cannotRunVms,
  skipWithoutImage,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const run = promisify(execFile)
const skip = cannotRunVms || (await skipWithoutImage('devbox:1'))
const folder = await mkdtemp(path.join(tmpdir(), 'warren-guest-ca-'))
after(() => rm(folder, { recursive: true }))
const caFile = path.join(folder, 'ca.crt')
const settings = { WARREN_GUEST_CA_FILE: caFile, WARREN_GUEST_HTTP_PROXY: 'http://192.0.2.1:3128' }
const warren = await startUnlessSkipped(skip, async () => {
  await makeCertificates()
  return startVmInstance(settings)
})

const sandbox = await startUnlessSkipped(skip, () =>
  createSandbox(warren, { rootfs: 'devbox:1', shape: 's-1vcpu-1gb' }),
)

describe('devbox:1', { skip, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('has the tools that developers expect', async () => {
    const tools = 'bun bunx uv rg jq tmux zstd nc git node npm python3 pip3 go cc'

    const missing = await runShell(
      warren,
      sandbox.id,
      `for tool in ${tools}; do command -v $tool >/dev/null || echo $tool; done`,
    )
    const versions = await runShell(warren, sandbox.id, 'bun --version && uv --version')

    assert.equal(missing, '')
    assert.match(versions, /^\d+\.\d+\.\d+\nuv \d+\.\d+\.\d+/)
  })

  test('Go compiles a program without compiling the standard library first', async () => {
    const program =
      'package main; import ("fmt"; "net/http"; "encoding/json"); func main() { json.Marshal(http.StatusText(200)); fmt.Println("hello") }'
    await runShell(warren, sandbox.id, `printf %s '${program}' > /root/hello.go`)

    const compiled = await runShell(warren, sandbox.id, 'go build -v -o /root/hello /root/hello.go 2>&1')

    assert.equal(compiled, 'command-line-arguments')
    assert.equal(await runShell(warren, sandbox.id, '/root/hello'), 'hello')
  })
})

describe('authorities of the operator', { skip, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('curl, Node, Python and bun in a guest trust a server whose certificate the authority signed', async () => {
    const { id } = sandbox
    const cert = await readFile(path.join(folder, 'server.crt'), 'utf8')
    const key = await readFile(path.join(folder, 'server.key'), 'utf8')
    await runShell(warren, id, `printf %s '${cert}' > /root/cert.pem; printf %s '${key}' > /root/key.pem`)
    const server =
      `require('https').createServer({ cert: fs.readFileSync('/root/cert.pem'), key: fs.readFileSync('/root/key.pem') },
      (_, response) => response.end('hello')).listen(8443, () => fs.writeFileSync('/root/ready', ''))`.replaceAll(
        '\n',
        ' ',
      )
    await runShell(
      warren,
      id,
      `setsid node -e "${server}" >/dev/null 2>&1 & until [ -e /root/ready ]; do sleep 0.1; done`,
    )

    const clients = {
      curl: 'curl -sS https://localhost:8443/',
      node: 'node -e "fetch(\'https://localhost:8443/\').then((r) => r.text()).then((t) => process.stdout.write(t))"',
      python: `python3 -c "import urllib.request as r; print(r.urlopen('https://localhost:8443/').read().decode(), end='')"`,
      bun: 'bun -e "process.stdout.write(await (await fetch(\'https://localhost:8443/\')).text())"',
    }
    const answers: Record<string, string> = {}
    for (const [name, command] of Object.entries(clients)) answers[name] = await runShell(warren, id, command)

    assert.deepEqual(answers, { curl: 'hello', node: 'hello', python: 'hello', bun: 'hello' })
  })

  test('the proxy is in the environment, and the variables of the sandbox override it', async () => {
    const plain = await createSandbox(warren)
    const other = await createSandbox(warren, { envs: { http_proxy: 'http://192.0.2.2:8080' } })

    const print = 'printf "%s %s" "$http_proxy" "$HTTP_PROXY"'
    const proxy = 'http://192.0.2.1:3128'
    assert.equal(await runShell(warren, plain.id, print), `${proxy} ${proxy}`)
    assert.equal(await runShell(warren, other.id, print), `http://192.0.2.2:8080 ${proxy}`)
  })

  test('changed settings reach a sandbox that was saved before, when it is resumed', async () => {
    const { id } = await createSandbox(warren)
    await pauseSandbox(warren, id)
    await stop(warren.instance)
    settings.WARREN_GUEST_HTTP_PROXY = 'http://192.0.2.3:3128'
    await warren.restart()

    await resumeSandbox(warren, id)

    assert.equal(await runShell(warren, id, 'echo $http_proxy'), 'http://192.0.2.3:3128')
  })
})

/** An authority, and a certificate for localhost that it signs. Python is strict about the extensions of both. */
async function makeCertificates(): Promise<void> {
  // The system's configuration would make every certificate one of an authority.
  await writeFile(path.join(folder, 'openssl.cnf'), '[req]\ndistinguished_name = name\n[name]\n')
  const make = (name: string, options: string[], extensions: string[]) => {
    const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', `${name}.key`]
    const added = extensions.flatMap((extension) => ['-addext', extension])
    const args = [...key, '-config', 'openssl.cnf', '-days', '9', '-out', `${name}.crt`, ...options, ...added]
    return run('openssl', ['req', '-x509', ...args], { cwd: folder })
  }
  const isAuthority = [
    'basicConstraints=critical,CA:TRUE',
    'keyUsage=critical,keyCertSign',
    'subjectKeyIdentifier=hash',
  ]
  await make('ca', ['-subj', '/CN=Company CA'], isAuthority)
  const signed = ['-subj', '/CN=localhost', '-CA', 'ca.crt', '-CAkey', 'ca.key']
  await make('server', signed, ['basicConstraints=critical,CA:FALSE', 'subjectAltName=DNS:localhost'])
}
