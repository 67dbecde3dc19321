package verbs

// AH is an address handle: where the messages of UD QPs go.
type AH struct {
	pd  *PD
	drv AHDriver
	av  AddressVector
}

// CreateAH makes an address handle. The error wraps ErrUnsupported on a
// device without CapUD.
func (pd *PD) CreateAH(av AddressVector) (*AH, error) {
	const op = "create AH"
	d, ok := pd.drv.(AddressDriver)
	if !ok || !pd.ctx.attr.Caps.Has(CapUD) {
		return nil, pd.ctx.wrap(op, ErrUnsupported)
	}
	if err := checkAttrValues(&QPAttr{AV: av, Port: av.Port}, QPAttrAV|QPAttrPort, &pd.ctx.attr); err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	drv, err := charged(pd.ctx, func() (AHDriver, error) { return d.CreateAH(&av) })
	if err != nil {
		return nil, pd.ctx.wrap(op, err)
	}
	return &AH{pd: pd, drv: drv, av: av}, nil
}

// Driver returns the provider's object.
func (ah *AH) Driver() AHDriver { return ah.drv }

// Close destroys the handle. Work requests that use it must be done before.
func (ah *AH) Close() error { return ah.pd.ctx.ended("destroy AH", ah.drv.Destroy()) }
