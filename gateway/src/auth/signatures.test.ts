import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import { test } from 'node:test'
import { Wallet } from 'ethers'
import fc from 'fast-check'
import { generatePrivateKey, privateKeyToAccount } from 'viem/accounts'
import { createNativeVerifier, createVerifier, createViemVerifier } from './verifier.ts'

const native = createNativeVerifier(createRequire(import.meta.url)('secp256k1/bindings.js'))
const slow = createViemVerifier()

test('the native verifier is used on this machine and agrees with viem on a signature', async () => {
  const warnings: string[] = []
  const verifier = await createVerifier({ warn: (text: string) => void warnings.push(text) } as never)

  assert.equal(verifier.isNative, process.arch === 'x64')
  assert.deepEqual(warnings.length, verifier.isNative ? 0 : 1)
})

test('signatures made by viem and by ethers are recovered by both verifiers', async () => {
  for (let i = 0; i < 20; i++) {
    const key = generatePrivateKey()
    const account = privateKeyToAccount(key)
    const message = `${account.address}:${Date.now() + i}:${crypto.randomUUID()}`

    const byViem = await account.signMessage({ message })
    const byEthers = (await new Wallet(key).signMessage(message)) as `0x${string}`

    for (const signature of [byViem, byEthers]) {
      assert.equal(await native.recover(message, signature), account.address.toLowerCase())
      assert.equal(await slow.recover(message, signature), account.address.toLowerCase())
    }
  }
})

test('a published EIP-191 vector is recovered', async () => {
  // From the documentation of web3.js, `eth.accounts.sign`.
  const signature =
    '0xb91467e570a6466aa9e9876cbcd013baba02900b8979d43fe208a4a4f339f5fd6007e74cd82e037b800186422fc2da167c747ef045e5d18a5f5d4300f8e1a0291c'

  assert.equal(await native.recover('Some data', signature), '0x2c7536e3605d9c16a7a3d7b1898e529396a65c23')
})

test('v of 0 and 1 means 27 and 28, and every other v is refused', async () => {
  const account = privateKeyToAccount(generatePrivateKey())
  const signature = await account.signMessage({ message: 'hello' })
  const v = Number.parseInt(signature.slice(-2), 16)
  const withV = (value: number) => `${signature.slice(0, -2)}${value.toString(16).padStart(2, '0')}` as `0x${string}`

  for (const verifier of [native, slow]) {
    assert.equal(await verifier.recover('hello', withV(v - 27)), account.address.toLowerCase())
    for (const wrong of [2, 3, 26, 29, 30, 35, 37, 255])
      assert.equal(await verifier.recover('hello', withV(wrong)), undefined)
  }
})

test('the second form of a signature, with a high s, is refused', async () => {
  const order = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n
  const account = privateKeyToAccount(generatePrivateKey())
  const signature = await account.signMessage({ message: 'hello' })
  const s = order - BigInt(`0x${signature.slice(66, 130)}`)
  const v = signature.endsWith('1b') ? '1c' : '1b'
  const twin = `${signature.slice(0, 66)}${s.toString(16).padStart(64, '0')}${v}` as `0x${string}`

  assert.equal(await native.recover('hello', twin), undefined)
  assert.equal(await slow.recover('hello', twin), undefined)
})

test('both verifiers give the same answer to any 65 bytes, and never throw', async () => {
  const bytes = fc.uint8Array({ minLength: 65, maxLength: 65 })
  const edges = fc.constantFrom(
    new Uint8Array(65),
    new Uint8Array(65).fill(0xff),
    new Uint8Array(65).fill(0xff, 0, 32),
    new Uint8Array(65).fill(1, 0, 64),
  )
  await fc.assert(
    fc.asyncProperty(fc.oneof(bytes, edges), fc.constantFrom(0, 1, 27, 28), async (random, v) => {
      random[64] = v
      const signature = `0x${Buffer.from(random).toString('hex')}` as const
      assert.equal(await native.recover('m', signature), await slow.recover('m', signature))
    }),
    { numRuns: 100 },
  )
})
