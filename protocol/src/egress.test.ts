import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { type EgressRule, isOpenEgress, namesHost, parseEgressRule, parseEgressRules } from './egress.ts'

const host = (name: string, ports = [80, 443], subdomains = false) => ({ kind: 'host', host: name, subdomains, ports })

test('a host allows HTTP and HTTPS to that name only', () => {
  assert.deepEqual(parseEgressRule('api.example.com'), host('api.example.com'))
  assert.deepEqual(parseEgressRule('API.Example.com.'), host('api.example.com'))
  assert.deepEqual(parseEgressRule('my_bucket.s3.example.com'), host('my_bucket.s3.example.com'))
  assert.deepEqual(parseEgressRule('1.2.3.4.example'), host('1.2.3.4.example'))
})

test('a host can be limited to port 80 or 443, and to no other', () => {
  assert.deepEqual(parseEgressRule('example.com:443'), host('example.com', [443]))
  assert.deepEqual(parseEgressRule('example.com:80'), host('example.com', [80]))
  assert.match(String(parseEgressRule('example.com:22')), /^"example.com:22": .*80 or 443 only/)
})

test('a wildcard matches the subdomains of the host', () => {
  assert.deepEqual(parseEgressRule('*.example.com'), host('example.com', [80, 443], true))
  assert.deepEqual(parseEgressRule('*.example.com:443'), host('example.com', [443], true))
  for (const bad of ['a.*.com', '*example.com', '*.*.com', '*:443', '*.']) {
    assert.equal(typeof parseEgressRule(bad), 'string', bad)
  }
})

test('an address or a block allows all ports, or the one given', () => {
  assert.deepEqual(parseEgressRule('1.2.3.4'), { kind: 'block', address: '1.2.3.4', prefix: 32 })
  assert.deepEqual(parseEgressRule('1.2.3.4:22'), { kind: 'block', address: '1.2.3.4', prefix: 32, port: 22 })
  assert.deepEqual(parseEgressRule('10.0.0.0/8'), { kind: 'block', address: '10.0.0.0', prefix: 8 })
  assert.deepEqual(parseEgressRule('10.0.0.0/8:5432'), { kind: 'block', address: '10.0.0.0', prefix: 8, port: 5432 })
  assert.deepEqual(parseEgressRule('0.0.0.0/0'), { kind: 'block', address: '0.0.0.0', prefix: 0 })
})

test('host bits of a block are cleared', () => {
  assert.deepEqual(parseEgressRule('203.0.113.77/24'), { kind: 'block', address: '203.0.113.0', prefix: 24 })
  assert.deepEqual(parseEgressRule('255.255.255.255/1'), { kind: 'block', address: '128.0.0.0', prefix: 1 })
})

test('an almost valid address is refused and not read as a host', () => {
  for (const bad of ['256.1.1.1', '10.1', '1.2.3.4.5', '010.0.0.1', '1.2.3', '0x7f.1', '2130706433', 'example.0x1']) {
    assert.match(String(parseEgressRule(bad)), /not an IPv4 address/, bad)
  }
  for (const bad of ['1.2.3.4/33', '1.2.3.4/', '1.2.3.4/08', '1.2.3.4/8/8']) {
    assert.match(String(parseEgressRule(bad)), /prefix length/, bad)
  }
  for (const bad of ['1.2.3.4:0', '1.2.3.4:65536', 'example.com:', 'example.com:http', '1.2.3.4:+1']) {
    assert.match(String(parseEgressRule(bad)), /port must be/, bad)
  }
})

test('IPv6 is refused in every notation', () => {
  for (const bad of ['::1', '2001:db8::/32', '[2001:db8::1]:443', '::ffff:1.2.3.4', '[::1]']) {
    assert.match(String(parseEgressRule(bad)), /IPv6 is not supported/, bad)
  }
})

test('an invalid host is refused with a hint how to fix it', () => {
  assert.match(String(parseEgressRule('https://example.com/x')), /without a scheme/)
  assert.match(String(parseEgressRule('example.com/x')), /takes no path/)
  assert.match(String(parseEgressRule('bücher.example')), /xn--/)
  for (const bad of ['', ' ', 'a b', '-a.com', 'a-.com', 'a..b', '.com', `${'a'.repeat(64)}.com`, 'a.'.repeat(128)]) {
    assert.equal(typeof parseEgressRule(bad), 'string', bad)
  }
})

test('none must be the only rule', () => {
  assert.deepEqual(parseEgressRules(['none']), [{ kind: 'none' }])
  assert.equal(parseEgressRules(['none', 'example.com']), '"none" must be the only rule')
})

test('an invalid list is refused with its first invalid rule', () => {
  assert.deepEqual(parseEgressRules(['*', '1.2.3.4:53']), [
    { kind: 'all' },
    { kind: 'block', address: '1.2.3.4', prefix: 32, port: 53 },
  ])
  assert.match(String(parseEgressRules(['example.com', 'nope:1', '::'])), /^"nope:1"/)
})

test('absent, null, empty and * allow everything; any other list does not', () => {
  for (const open of [undefined, null, [], ['*'], ['example.com', '*']]) assert.ok(isOpenEgress(open))
  for (const closed of [['none'], ['example.com'], ['0.0.0.0/0'], ['*.com']]) assert.ok(!isOpenEgress(closed))
})

test('every address and prefix is parsed, and no text makes the parser throw', () => {
  const octet = fc.nat(255)
  fc.assert(
    fc.property(fc.tuple(octet, octet, octet, octet), fc.nat(32), (octets, prefix) => {
      const rule = parseEgressRule(`${octets.join('.')}/${prefix}`)

      assert.ok(typeof rule === 'object' && rule.kind === 'block' && rule.prefix === prefix)
      const bits = (bytes: Iterable<unknown>) =>
        [...bytes].map((byte) => Number(byte).toString(2).padStart(8, '0')).join('')
      assert.equal(bits(rule.address.split('.')), bits(octets).slice(0, prefix).padEnd(32, '0'))
    }),
  )
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), (text) => {
      parseEgressRule(text)
    }),
  )
})

test('a rule names the host if it is its address or a link-local block around it', () => {
  const names = (text: string) => namesHost(parseEgressRule(text) as EgressRule, '169.254.1.1')

  for (const rule of ['169.254.1.1', '169.254.1.1:8080', '169.254.1.0/24', '169.254.0.0/16:80'])
    assert.ok(names(rule), rule)
  for (const rule of ['169.254.1.2', '169.254.2.0/24', '169.254.0.0/15', '0.0.0.0/0', '*', 'none', 'example.com']) {
    assert.ok(!names(rule), rule)
  }
})
